-- Locks whose time is over, or those of one store. Arguments: how many at most, the
-- store's name, or ''. Returns for each: number, token.
local most, of = arg(), arg()
local out, to = {}, now()
if of ~= '' then
  most, to = -1, '+inf'
end
for _, number in ipairs(call('ZRANGE', P .. 'locks', '-inf', to, 'BYSCORE', 'LIMIT', 0, most)) do
  local has = call('HGET', P .. 'token', number)
  if not has then
    call('ZREM', P .. 'locks', number)
  elseif of == '' or has:sub(1, #of + 3) == 'x:' .. of .. '.' then
    out[#out + 1] = number
    out[#out + 1] = has:sub(1, has:find(' ', 1, true) - 1)
  end
end
return out
