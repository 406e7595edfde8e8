-- Forgets groups without kept messages that have not failed since: the caller may have read them
-- some time ago.
-- Arguments: the second since 1970 after which a failure keeps a group, groups.
local since, group = tonumber(arg()), arg()
while group do
  local last = (call('HGET', P .. 'groups:seen', group) or ''):match('^%d+ (%d+)')
  local kept = last and tonumber(last) > since
  for _, state in ipairs({'w', 'p', 'd'}) do
    kept = kept or call('HEXISTS', P .. 'groups:kept', state .. group) == 1
  end
  if not kept then
    call('HDEL', P .. 'groups', group)
    call('HDEL', P .. 'groups:seen', group)
  end
  group = arg()
end
return 1
