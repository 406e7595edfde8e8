-- Add: stores a batch of records, all or none, and only once.
-- Arguments: process, position, token of the batch, how long (ms) to remember that; those of
-- add, of notegroups, of remember. Returns the last number.
local positions, position, token, ttl = P .. 'added:' .. arg(), arg(), arg(), arg()
local has, last = (call('HGET', positions, position) or ''):match('^(%S+) (%d+)$')
if has == token then
  call('HSET', positions, position, token .. ' ' .. last) -- so that there is a write to confirm
  return tonumber(last)
end
local n = add()
notegroups()
remember()
account()
call('HSET', positions, position, token .. ' ' .. ('%.0f'):format(n))
call('PEXPIRE', positions, ttl)
return n
