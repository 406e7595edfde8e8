-- Next: returns for each lane with unclaimed records: lane, when the first is due. It releases
-- expired claims first.
expire(now())
local out = {}
for _, lane in ipairs(call('SMEMBERS', P .. 'wq')) do
  local first = call('ZRANGE', P .. 'w:' .. lane, 0, 0, 'WITHSCORES')
  if first[1] then
    push(out, lane, first[2])
  else
    call('SREM', P .. 'wq', lane)
  end
end
return out
