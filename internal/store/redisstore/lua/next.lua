-- Next: queues, and when the first record that may be claimed is due.
-- Returns for each: queue, due. What others did not end in time is given back first.
expire(now())
local out = {}
for _, queue in ipairs(call('SMEMBERS', P .. 'wq')) do
  local first = call('ZRANGE', P .. 'w:' .. queue, 0, 0, 'WITHSCORES')
  if first[1] then
    out[#out + 1] = queue
    out[#out + 1] = first[2]
  else
    call('SREM', P .. 'wq', queue)
  end
end
return out
