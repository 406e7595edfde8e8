-- DeleteEntries. Arguments: what is led, the term it is done in, the range of names
-- (from, to). The terms of what is named as they begin are forgotten, too. Returns 1, or 0 when another leads by now and nothing was done.
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
