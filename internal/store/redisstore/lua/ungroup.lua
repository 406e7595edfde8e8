-- Forgets groups that nothing is kept of in this shard. Arguments: groups.
local group = arg()
while group do
  local kept = false
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
