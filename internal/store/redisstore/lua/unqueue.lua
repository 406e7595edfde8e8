-- Moves the ledger's lines of queues without kept messages to the line of others.
-- Arguments: the columns of kept messages, the other columns, the name of the line of others,
-- queues. Returns how many were moved.
local states, flows, others, moved = arg(), arg(), arg(), 0
local queue = arg()
while queue do
  local empty = call('EXISTS', P .. 'c:' .. queue) == 0
  for state in states:gmatch('.') do
    empty = empty and call('EXISTS', P .. state .. ':' .. queue) == 0 and tonumber(call('HGET', P .. 'sums', state .. queue) or 0) == 0
  end
  if empty then
    call('DEL', P .. 'to:' .. queue) -- the sums show that nothing waits for its targets
    for as in (states .. flows):gmatch('.') do
      local n = call('HGET', P .. 'sums', as .. queue)
      if n then
        call('HINCRBY', P .. 'sums', as .. others, n)
        call('HDEL', P .. 'sums', as .. queue)
      end
    end
    moved = moved + 1
  end
  queue = arg()
end
return moved
