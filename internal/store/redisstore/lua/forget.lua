-- DeleteEntries. Arguments: what is led, the term, the range of names (from, to). It also
-- forgets the terms of the names' prefix. Returns 1, or 0 when another leads, so nothing was done.
if deposed(arg(), arg()) then
  return 0
end
local from, to = arg(), arg()
call('HDEL', P .. 'terms', from:sub(2))
while true do
  local names = call('ZRANGE', P .. 'en', from, to, 'BYLEX', 'LIMIT', 0, 1000)
  if #names == 0 then
    wrote()
    return 1
  end
  call('ZREM', P .. 'en', unpack(names))
  call('HDEL', P .. 'e', unpack(names))
end
