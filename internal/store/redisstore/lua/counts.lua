-- Counts. Returns for each queue: queue, waiting, parked, discarded, and of the
-- waiting one that is earliest due, claimed or not, when it is and the record without
-- its body ("" when none waits).
local out = {}
for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
  local w, c = P .. 'w:' .. queue, P .. 'c:' .. queue
  local waiting = call('ZCARD', w) + call('ZCARD', c)
  local parked, discarded = call('ZCARD', P .. 'p:' .. queue), call('ZCARD', P .. 'd:' .. queue)
  if waiting + parked + discarded == 0 then
    call('SREM', P .. 'queues', queue)
  else
    local a, b = call('ZRANGE', w, 0, 0, 'WITHSCORES'), call('ZRANGE', c, 0, 0, 'WITHSCORES')
    if not a[1] or b[1] and tonumber(b[2]) < tonumber(a[2]) then
      a = b
    end
    local m = a[1] and meta(a[1])
    for _, v in ipairs({queue, waiting, parked, discarded, a[2] or '', m and head(a[1], m) or ''}) do
      out[#out + 1] = v
    end
  end
end
return out
