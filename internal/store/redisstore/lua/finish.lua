-- Ends a Change that was done in all shards: writes its account.
-- Arguments: token, those of write.
local token = arg()
if call('DEL', P .. 'x:' .. token) == 1 then
  call('ZREM', P .. 'xs', token)
  write()
else
  wrote()
end
return 1
