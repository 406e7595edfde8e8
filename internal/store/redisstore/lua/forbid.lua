-- Forbids a Change unless it was done. Arguments: token, how long (ms).
call('SET', P .. 'undone:' .. arg(), '1', 'PX', arg())
return 1
