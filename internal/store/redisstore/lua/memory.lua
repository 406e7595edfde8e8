-- How the memory is of the server that has the store: what INFO says of it.
return call('INFO', 'memory')
