-- How the memory is of the server that has this shard: what INFO says of it.
return call('INFO', 'memory')
