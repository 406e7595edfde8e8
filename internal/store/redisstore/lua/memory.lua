-- Returns INFO memory of the server that has the store.
return call('INFO', 'memory')
