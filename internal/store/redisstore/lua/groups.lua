-- Groups. Returns three lists: what the members of each share, how many are kept of
-- each in each state, and when they were seen.
return {call('HGETALL', P .. 'groups'), call('HGETALL', P .. 'groups:kept'), call('HGETALL', P .. 'groups:seen')}
