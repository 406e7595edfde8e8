-- Commits a Change over several shards: from here on it is done, whoever does it.
-- Arguments: what is led, the term it is done in, token, what is to be done. Returns 0
-- when its locks were let go meanwhile, for it took too long, so that nothing may be
-- done any more; -1 when another leads by now.
if deposed(arg(), arg()) then
  return -1
end
local token, what = arg(), arg()
if call('EXISTS', P .. 'undone:' .. token) == 1 then
  return 0
end
call('SET', P .. 'x:' .. token, what)
call('ZADD', P .. 'xs', now(), token)
return 1
