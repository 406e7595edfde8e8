-- Reports whether Add has stored a batch; works when Redis is full.
-- Arguments: process, position, token of the batch. Returns 1 or 0.
local positions, position, token = P .. 'added:' .. arg(), arg(), arg()
local has = call('HGET', positions, position) or ''
if has:match('^(%S+) ') ~= token then
  return 0
end
call('HSET', positions, position, has) -- so that there is a write to confirm
return 1
