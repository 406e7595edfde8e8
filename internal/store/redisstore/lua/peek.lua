-- What is due of a lane in this shard, to choose among all shards.
-- Arguments: lane, up to when, how many at most.
-- Returns for each: due, number, size of its body.
local out, lane = {}, arg()
local due = call('ZRANGE', P .. 'w:' .. lane, '-inf', arg(), 'BYSCORE', 'LIMIT', 0, arg(), 'WITHSCORES')
for i = 1, #due, 2 do
  local m = meta(due[i])
  out[#out + 1] = due[i + 1]
  out[#out + 1] = due[i]
  out[#out + 1] = m and m.body or 0
end
return out
