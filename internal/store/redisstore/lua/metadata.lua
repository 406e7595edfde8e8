-- SetMetadata. Arguments: a number that the next are larger than, those of notegroups.
local newest, floor = tonumber(call('GET', KEYS[1]) or 0), tonumber(arg())
call('SET', KEYS[1], ('%.0f'):format(math.max(newest, floor)))
notegroups()
return 1
