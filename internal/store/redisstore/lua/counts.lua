-- Counts. Returns for each queue: queue, waiting, parked, discarded; then, of the first
-- waiting record, claimed or not, when it is due and the record without its body ("" when
-- none waits).
local out = {}
for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
  local waiting, a = 0, {}
  for i, lane in ipairs(lanesof(queue)) do
    local n = 0
    for _, set in ipairs({P .. 'w:' .. lane, P .. 'c:' .. lane}) do
      local first = call('ZRANGE', set, 0, 0, 'WITHSCORES')
      if first[1] then
        n = n + call('ZCARD', set)
        local less = tonumber(first[2]) - tonumber(a[2] or first[2])
        if not a[1] or less < 0 or less == 0 and first[1] < a[1] then
          a = first
        end
      end
    end
    if i > 1 and n == 0 then
      call('SREM', P .. 'to:' .. queue, lane)
    end
    waiting = waiting + n
  end
  local parked, discarded = call('ZCARD', P .. 'p:' .. queue), call('ZCARD', P .. 'd:' .. queue)
  if waiting + parked + discarded == 0 then
    call('SREM', P .. 'queues', queue)
  else
    local m = a[1] and meta(a[1])
    push(out, queue, waiting, parked, discarded, a[2] or '', m and head(a[1], m) or '')
  end
end
return out
