-- Forbids a Change to be done, if it was not. Arguments: token, how long (ms).
call('SET', P .. 'undone:' .. arg(), '1', 'PX', arg())
return 1
