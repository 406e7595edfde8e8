-- Receipts: returns those of all processes but one.
-- Arguments: that process, then for processes of which some are known: process, how many it
-- had written. Returns for each process: process, how many it has written, list of new ones.
local but, known, found = ARGV[1], {}, {}
for i = 2, #ARGV, 2 do
  known[ARGV[i]] = tonumber(ARGV[i + 1])
end
for _, process in ipairs(call('ZRANGE', P .. 'receipts:by', 0, -1)) do
  if process ~= but then
    local written, list = tonumber(call('HGET', P .. 'receipts:n', process) or 0), {}
    local new = written - (known[process] or 0)
    if new > 0 then
      list = call('LRANGE', P .. 'receipts:' .. process, -new, -1)
    end
    push(found, process, tostring(written), list)
  end
end
return found
