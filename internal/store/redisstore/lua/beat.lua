-- Beat. Arguments: replica, its description, how long (ms).
-- Returns for each replica alive: id, description.
local replica, about, ttl = arg(), arg(), arg()
local time, out = now(), {}
call('ZADD', P .. 'replicas', time + ttl, replica)
call('HSET', P .. 'replicas:about', replica, about)
for _, gone in ipairs(call('ZRANGE', P .. 'replicas', '-inf', time, 'BYSCORE')) do
  call('ZREM', P .. 'replicas', gone)
  call('HDEL', P .. 'replicas:about', gone)
end
for _, id in ipairs(call('ZRANGE', P .. 'replicas', 0, -1)) do
  push(out, id, call('HGET', P .. 'replicas:about', id))
end
return out
