-- Returns which store this is, and its generation.
-- Arguments: an id for a store without one ('' to give none); the store's id and a minimum
-- generation, to increment it ('' for neither).
-- Returns the id ('' for none), the generation.
local first, id, least = arg(), arg(), arg()
local key = P .. 'identity'
if first ~= '' then
  call('HSETNX', key, 'id', first)
end
local has = call('HGET', key, 'id') or ''
local n = tonumber(call('HGET', key, 'generation') or 0)
if id ~= '' and has == id and n >= tonumber(least) then
  n = call('HINCRBY', key, 'generation', 1)
end
return {has, n}
