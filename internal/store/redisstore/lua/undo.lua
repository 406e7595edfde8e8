-- Forbids a Change to be committed, so that its locks may be let go.
-- Arguments: token, how long (ms). Returns 0 when it is committed.
local token = arg()
if call('EXISTS', P .. 'x:' .. token) == 1 then
  wrote()
  return 0
end
call('SET', P .. 'undone:' .. token, '1', 'PX', arg())
return 1
