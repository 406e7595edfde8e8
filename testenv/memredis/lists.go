package memredis

type list struct{ values []string }

func newList() *list { return &list{} }

func (l *list) size() int { return len(l.values) }

func (l *list) memory() (sum int) {
	for _, v := range l.values {
		sum += partOverhead/4 + len(v)
	}
	return sum
}

func valuesOf(d *database, key string) []string {
	if l := read[*list](d, key); l != nil {
		return l.values
	}
	return nil
}

func rpush(d *database, a []string) answer {
	l := open(d, a[0], newList)
	l.values = append(l.values, a[1:]...)
	return int64(len(l.values))
}

func lpop(d *database, a []string) answer {
	l := read[*list](d, a[0])
	if l == nil {
		return nil
	}
	first := l.values[0]
	l.values = l.values[1:]
	d.deleteEmpty(a[0], l)
	return first
}

func lindex(d *database, a []string) answer {
	all, i := valuesOf(d, a[0]), integer(a[1])
	if i < 0 {
		i += len(all)
	}
	if i < 0 || i >= len(all) {
		return nil
	}
	return all[i]
}

func lrange(d *database, a []string) answer {
	all, some := valuesOf(d, a[0]), []any{}
	from, to := between(integer(a[1]), integer(a[2]), len(all))
	for _, v := range all[from:to] {
		some = append(some, v)
	}
	return some
}

func ltrim(d *database, a []string) answer {
	if l := read[*list](d, a[0]); l != nil {
		from, to := between(integer(a[1]), integer(a[2]), len(l.values))
		l.values = l.values[from:to]
		d.deleteEmpty(a[0], l)
	}
	return status("OK")
}
