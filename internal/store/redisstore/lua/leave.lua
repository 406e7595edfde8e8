-- Leave. Argument: replica.
local replica = arg()
call('ZREM', P .. 'replicas', replica)
call('HDEL', P .. 'replicas:about', replica)
return 1
