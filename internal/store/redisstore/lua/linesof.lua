-- Returns the ledger's lines of queues. Arguments: the columns, queues. Returns a number for
-- each column of each queue.
local columns, out, queue = arg(), {}, arg()
while queue do
  for as in columns:gmatch('.') do
    out[#out + 1] = call('HGET', P .. 'sums', as .. queue) or '0'
  end
  queue = arg()
end
return out
