-- Returns a page of the side table. Arguments: the range of names (from, to, for ZRANGE
-- BYLEX), how many at most, bytes of values at most.
-- Returns for each: name, value.
local out, bytes = {}, 0
local names = call('ZRANGE', P .. 'en', arg(), arg(), 'BYLEX', 'LIMIT', 0, arg())
local most = tonumber(arg())
for _, name in ipairs(names) do
  local value = call('HGET', P .. 'e', name) or ''
  push(out, name, value)
  bytes = bytes + #name + #value
  if bytes > most then
    break
  end
end
return out
