-- Lets go locks whose time is over, or those of one store, and forbids the Changes that
-- have them to be done. Arguments: how many at most, the store's name or '', how long
-- that is remembered (ms). Returns how many were let go.
local most, of, ttl = arg(), arg(), arg()
local forbidden, n, to = {}, 0, now()
if of ~= '' then
  most, to = -1, '+inf'
end
for _, number in ipairs(call('ZRANGE', P .. 'locks', '-inf', to, 'BYSCORE', 'LIMIT', 0, most)) do
  local has = call('HGET', P .. 'token', number)
  if not has then
    call('ZREM', P .. 'locks', number)
  elseif of == '' or has:sub(1, #of + 3) == 'x:' .. of .. '.' then
    local token = has:sub(1, has:find(' ', 1, true) - 1)
    if not forbidden[token] then
      call('SET', P .. 'undone:' .. token, '1', 'PX', ttl)
      forbidden[token] = true
    end
    giveback(number, has)
    n = n + 1
  end
end
return n
