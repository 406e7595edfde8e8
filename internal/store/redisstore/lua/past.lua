-- PastFailures. Argument: id. Returns the past failures with that id.
local id, out = arg(), {}
for _, e in ipairs(call('LRANGE', P .. 'past:' .. bucket(id), 0, -1)) do
  if e:sub(1, 16) == id then
    local found = call('XRANGE', P .. 'past', e:sub(17), e:sub(17))[1]
    if found then
      out[#out + 1] = found[2][2]
    end
  end
end
return out
