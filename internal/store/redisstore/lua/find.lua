-- Find. Argument: id. Returns for each record with that id: number, record.
local id, out = arg(), {}
for n in (call('HGET', P .. 'i:' .. bucket(id), id) or ''):gmatch('%d+') do
  push(out, n, call('GET', P .. 'm:' .. member(tonumber(n))))
end
return out
