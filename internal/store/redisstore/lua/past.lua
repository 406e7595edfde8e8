-- Past. Argument: id. Returns what is left of its records that ended.
local id, out = arg(), {}
local list = P .. 'past:' .. ('%03x'):format(id:byte(15) % 16 * 256 + id:byte(16))
for _, e in ipairs(call('LRANGE', list, 0, -1)) do
  if e:sub(1, 16) == id then
    local found = call('XRANGE', P .. 'past', e:sub(17), e:sub(17))[1]
    if found then
      out[#out + 1] = found[2][2]
    end
  end
end
return out
