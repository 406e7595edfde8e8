-- Lead. Arguments: what, replica, how long (ms), the store of the replica.
-- Returns the term, 1 when the replica leads, and when that begins now whose store the
-- one before had ('' for none).
local what, replica, ttl, name = arg(), arg(), arg(), arg()
local leader, before = call('GET', P .. 'leader:' .. what), ''
if leader and leader ~= replica then
  return {call('HGET', P .. 'terms', what), 0, before}
end
call('SET', P .. 'leader:' .. what, replica, 'PX', ttl)
if not leader then
  call('HINCRBY', P .. 'terms', what, 1)
  before = call('HGET', P .. 'terms:by', what) or ''
  call('HSET', P .. 'terms:by', what, name)
end
return {call('HGET', P .. 'terms', what), 1, before}
