-- Find. Argument: id. Returns for each record with it: number, record.
local id, out = arg(), {}
local key = P .. 'i:' .. ('%03x'):format(id:byte(15) % 16 * 256 + id:byte(16))
for n in (call('HGET', key, id) or ''):gmatch('%d+') do
  out[#out + 1] = n
  out[#out + 1] = call('GET', P .. 'm:' .. member(tonumber(n)))
end
return out
