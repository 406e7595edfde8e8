package memredis

import "time"

func get(d *database, a []string) answer {
	if d.find(a[0]) == nil {
		return nil
	}
	return read[string](d, a[0])
}

func set(d *database, a []string) answer {
	e := &entry{value: a[1]}
	for i := 2; i < len(a); i++ {
		switch {
		case isOption(a[i], "NX"):
			if d.find(a[0]) != nil {
				return nil
			}
		case isOption(a[i], "PX") && i+1 < len(a):
			i++
			e.expires = d.now.Add(time.Duration(integer(a[i])) * time.Millisecond)
		default:
			return syntaxError
		}
	}
	d.keys[a[0]] = e
	return status("OK")
}

func getRange(d *database, a []string) answer {
	v := read[string](d, a[0])
	from, to := between(integer(a[1]), integer(a[2]), len(v))
	return v[from:to]
}

func exists(d *database, a []string) answer {
	n := int64(0)
	for _, key := range a {
		if d.find(key) != nil {
			n++
		}
	}
	return n
}

func del(d *database, a []string) answer {
	n := exists(d, a)
	for _, key := range a {
		delete(d.keys, key)
	}
	return n
}

func pexpire(d *database, a []string) answer {
	e := d.find(a[0])
	if e == nil {
		return int64(0)
	}
	e.expires = d.now.Add(time.Duration(integer(a[1])) * time.Millisecond)
	return int64(1)
}

func clock(d *database, _ []string) answer {
	return []any{itoa(d.now.Unix()), itoa(int64(d.now.Nanosecond() / 1000))}
}
