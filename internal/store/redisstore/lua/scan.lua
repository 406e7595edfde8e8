-- Returns a page of a Scan: the next records of several sorted sets in one order.
-- Arguments: "1" for the newest first; from and to (bounds of Due for ZCOUNT); due and number
-- from where to continue ("" for the start; among records with that due, the first number to
-- return when ascending, the last not to return when descending); how many records at most;
-- how many bytes of them at most; "1" for bodies; n, then n groups (none: all); then the sets:
-- "" for all queues and the states in the next argument, or else their names.
-- Returns whether this is the last page, due and number where it ended, and then for each
-- record: due, number, its size, the record.
local down, from, to, due, number = arg() == '1', arg(), arg(), arg(), arg()
local most, bytes, bodies = tonumber(arg()), tonumber(arg()), arg() == '1'
local groups, any = {}, false
for _ = 1, tonumber(arg()) do
  groups[arg()], any = true, true
end
local sets = {}
-- targets adds the sets of a queue's records for forward targets.
local function targets(queue, states)
  for _, lane in ipairs(call('SMEMBERS', P .. 'to:' .. queue)) do
    for state in states:gmatch('[wc]') do
      sets[#sets + 1] = P .. state .. ':' .. lane
    end
  end
end
local first = arg()
if first == '' then
  local states = arg()
  for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
    for state in states:gmatch('.') do
      sets[#sets + 1] = P .. state .. ':' .. queue
    end
    targets(queue, states)
  end
else
  while first do
    sets[#sets + 1] = P .. first
    if first:find('^[wc]:') then
      targets(first:sub(3), first:sub(1, 1))
    end
    first = arg()
  end
end

-- behind returns how many members of a set come before the place where the page starts.
local function behind(set)
  if due == '' then
    return down and math.huge or 0
  end
  local low = call('ZCOUNT', set, '-inf', '(' .. due)
  local high = low + call('ZCOUNT', set, due, due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZRANGE', set, middle, middle)[1] < number then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Of many sets, read only a few members each: what comes after the last one read of a set
-- that has more is left for the next page.
local each = #sets == 1 and most or math.max(8, math.ceil(2 * most / math.max(1, #sets)))
local found, limit, last = {}, nil, true
for _, set in ipairs(sets) do
  local n = behind(set)
  local some, ends
  if down then
    n = math.min(n, call('ZCOUNT', set, '-inf', to))
    -- What is between from and the place, from its end on.
    local least = call('ZCOUNT', set, '-inf', from)
    some = n > least and call('ZRANGE', set, math.max(least, n - each), n - 1, 'WITHSCORES') or {}
    ends = n - each <= least
  else
    n = math.max(n, call('ZCOUNT', set, '-inf', from))
    local upto = call('ZCOUNT', set, '-inf', to)
    some = n < upto and call('ZRANGE', set, n, math.min(n + each, upto) - 1, 'WITHSCORES') or {}
    ends = n + each >= upto
  end
  for i = 1, #some, 2 do
    found[#found + 1] = {due = tonumber(some[i + 1]), text = some[i + 1], number = some[i]}
  end
  if not ends then
    last = false
    local edge = down and found[#found - #some / 2 + 1] or found[#found]
    if not limit or down and (edge.due > limit.due or edge.due == limit.due and edge.number > limit.number)
      or not down and (edge.due < limit.due or edge.due == limit.due and edge.number < limit.number) then
      limit = edge
    end
  end
end
local function before(a, b)
  return a.due < b.due or a.due == b.due and a.number < b.number
end
table.sort(found, function(a, b)
  if down then
    return before(b, a)
  end
  return before(a, b)
end)

local out, sum, ended = {0, '', ''}, 0, nil
for i, f in ipairs(found) do
  if i > most or sum > bytes then
    last = false
    break
  end
  ended = f
  local m = meta(f.number)
  if m and (not any or groups[m.group]) then
    local value = bodies and call('GETRANGE', P .. 'm:' .. f.number, 8, -1) or head(f.number, m)
    sum = sum + #value
    push(out, f.text, f.number, m.body, value)
  end
  if f == limit then
    last = false
    break
  end
end
if ended then
  out[2], out[3] = ended.text, ended.number
end
out[1] = last and 1 or 0
return out
