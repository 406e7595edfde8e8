-- CountDue. Arguments: n, then n edges, then queues. Returns for each edge how many records
-- are due before it, and not before the previous edge.
local edges, out = {}, {}
for i = 1, tonumber(arg()) do
  edges[i], out[i] = '(' .. arg(), 0
end
local queue = arg()
while queue do
  for _, lane in ipairs(lanesof(queue)) do
    for _, state in ipairs({'w:', 'c:'}) do
      local before = 0
      for i, edge in ipairs(edges) do
        local n = call('ZCOUNT', P .. state .. lane, '-inf', edge)
        out[i] = out[i] + n - before
        before = n
      end
    end
  end
  queue = arg()
end
return out
