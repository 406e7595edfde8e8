-- Forgets groups that nothing is kept of, and that have not failed since:
-- who asks may have looked at them some time ago.
-- Arguments: the second since 1970 after which a failure keeps a group, groups.
local since, group = tonumber(arg()), arg()
while group do
  local last = (call('HGET', P .. 'groups:seen', group) or ''):match('^%d+ (%d+)')
  local kept = last and (tonumber(last) < 1e9 and tonumber(last) * 60 or tonumber(last)) > since
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
