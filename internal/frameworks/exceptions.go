package frameworks

import "strings"

// exceptionIn returns type and message of an exception as .NET, Java and Ruby print it:
// "com.shop.NoStock: no stock", and the stack on further lines.
func exceptionIn(printed string) (typ, message string) {
	line, _, _ := strings.Cut(printed[:min(len(printed), maxText)], "\n")
	line = strings.TrimRight(line, "\r")
	typ = typeIn(line)
	if typ == "" {
		return "", line
	}
	return typ, strings.TrimPrefix(line[len(typ):], ": ")
}

// typeIn returns the type at the beginning of "com.shop.NoStock: no stock", or "".
func typeIn(line string) string {
	typ, _, _ := strings.Cut(strings.TrimRight(line, "\r"), ": ")
	if typ == "" || len(typ) > maxName || strings.ContainsFunc(typ, notInTypes) {
		return ""
	}
	return typ
}

func notInTypes(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(".$_`+:", r)
}

// raisedIn returns type and message of the exception at the end of a traceback of Python.
func raisedIn(traceback string) (typ, message string) {
	traceback = strings.TrimRight(traceback[max(0, len(traceback)-maxText):], " \r\n")
	return exceptionIn(traceback[strings.LastIndexByte(traceback, '\n')+1:])
}
