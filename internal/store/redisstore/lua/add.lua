-- Add: keeps records, all or none, and a batch that it has kept already not again.
-- Arguments: process, lane, token of the batch, how long (ms) that is remembered; those
-- of add, of see, of remember. Returns the last number.
local lanes, lane, token, ttl = P .. 'added:' .. arg(), arg(), arg(), arg()
local has, last = (call('HGET', lanes, lane) or ''):match('^(%S+) (%d+)$')
if has == token then
  call('HSET', lanes, lane, token .. ' ' .. last) -- so that there is a write to confirm
  return tonumber(last)
end
local n = add()
see()
remember()
account()
call('HSET', lanes, lane, token .. ' ' .. ('%.0f'):format(n))
call('PEXPIRE', lanes, ttl)
return n
