package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
)

func diagnosed(colour bool, findings ...doctor.Finding) string {
	var b strings.Builder
	r := doctor.Report{Status: doctor.OK, Broker: "amqp://x/", VHost: "/", Version: "4.3.6", Findings: findings}
	for _, f := range findings {
		if f.Status != doctor.OK {
			r.Status = f.Status
		}
	}
	(&diagnosis{&b, colour, map[string]bool{}}).write(r)
	return b.String()
}

func TestDiagnoses(t *testing.T) {
	if got, want := diagnosed(false, doctor.Finding{Check: "clock", Status: doctor.OK}), "RabbitMQ 4.3.6 at amqp://x/, virtual host \"/\"\nok all 1 check\n"; got != want {
		t.Errorf("when all is well it says %q", got)
	}
	var all []doctor.Finding
	for i := range 9 {
		all = append(all, doctor.Finding{Check: "consumers", Status: doctor.Warning, Queue: fmt.Sprint("q", i), What: "none\x1b[2J", Why: "Because.", Remedy: "Start:", Commands: []string{fmt.Sprint("redrive pause q", i)}})
	}
	all = append(all, doctor.Finding{Check: "lifetime", Status: doctor.Wrong, Queue: "q8", What: "gone"},
		doctor.Finding{Check: "alarms", Status: doctor.Unknown, What: "not looked at", Why: "no tag"}, doctor.Finding{Check: "disk-room", Status: doctor.Unknown, What: "not looked at", Why: "no tag"})
	got := diagnosed(false, all...)
	for _, want := range []string{
		"\nqueue q0, and 7 more alike: q1, q2, q3, q4, q5, …\n  warning  consumers  none\ufffd[2J\n           Because.\n           Start:\n           $ redrive pause q0\n",
		"\nqueue q8\n  wrong    lifetime   gone\n  warning  consumers  none\ufffd[2J\n           Start:\n", // the reason was said
		"\nnot looked at, or not wholly\n  unknown  alarms, disk-room\n           no tag\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	if got := diagnosed(true, all...); !strings.Contains(got, "\x1b[31;1mwrong  \x1b[0m  lifetime   gone\n") || strings.Contains(got, "[2J\x1b") {
		t.Errorf("in colour: %q", got)
	}
}
