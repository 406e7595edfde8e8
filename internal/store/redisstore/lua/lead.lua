-- Lead. Arguments: what, replica, how long (ms). Returns the term, and 1 when the replica leads.
local what, replica, ttl = arg(), arg(), arg()
local leader = call('GET', P .. 'leader:' .. what)
if leader and leader ~= replica then
  return {call('HGET', P .. 'terms', what), 0}
end
call('SET', P .. 'leader:' .. what, replica, 'PX', ttl)
if not leader then
  call('HINCRBY', P .. 'terms', what, 1)
end
return {call('HGET', P .. 'terms', what), 1}
