-- Groups. Returns three hashes as lists: what the members of each group share, how many are
-- kept in each state, and when they failed.
return {call('HGETALL', P .. 'groups'), call('HGETALL', P .. 'groups:kept'), call('HGETALL', P .. 'groups:seen')}
