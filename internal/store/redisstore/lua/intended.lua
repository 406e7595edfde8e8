-- Changes that were committed some time ago and are not done.
-- Arguments: how long ago (ms), how many at most. Returns for each: token, what.
local out = {}
for _, token in ipairs(call('ZRANGE', P .. 'xs', '-inf', now() - arg(), 'BYSCORE', 'LIMIT', 0, arg())) do
  out[#out + 1] = token
  out[#out + 1] = call('GET', P .. 'x:' .. token) or ''
end
return out
