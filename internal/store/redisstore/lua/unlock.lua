-- Releases expired locks, or those of all terms of what is led, and forbids their Changes.
-- Arguments: how many at most, what is led or '', how long to remember that (ms), "1" to do so,
-- "0" to count them. Returns how many they are.
local most, of, ttl, doit = arg(), arg(), arg(), arg() == '1'
local forbidden, n, to = {}, 0, now()
if of ~= '' then
  most, to = -1, '+inf'
end
for _, number in ipairs(call('ZRANGE', P .. 'locks', '-inf', to, 'BYSCORE', 'LIMIT', 0, most)) do
  local has = call('HGET', P .. 'token', number)
  if not has then
    call('ZREM', P .. 'locks', number)
  elseif of == '' or has:sub(1, #of + 3) == 'x:' .. of .. '.' then
    n = n + 1
    if doit then
      local token = has:sub(1, has:find(' ', 1, true) - 1)
      if not forbidden[token] then
        call('SET', P .. 'undone:' .. token, '1', 'PX', ttl)
        forbidden[token] = true
      end
      giveback(number, has)
    end
  end
end
return n
