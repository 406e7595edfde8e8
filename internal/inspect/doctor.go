package inspect

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
)

// examineFor is how long a run of the doctor may take.
const examineFor = 3 * time.Minute

// Finding is one result of the doctor's.
type Finding struct {
	Check    string   `json:"check"`
	Status   string   `json:"status" enum:"ok,unknown,warning,wrong"`
	Queue    string   `json:"queue,omitempty" doc:"The work queue; absent for RabbitMQ and the service."`
	What     string   `json:"what"`
	Why      string   `json:"why,omitempty" doc:"Why it matters."`
	Remedy   string   `json:"remedy,omitempty"`
	Commands []string `json:"commands,omitempty" doc:"They do what remedy says."`
}

// Examination is what the doctor found in its latest run.
type Examination struct {
	Running  *time.Time `json:"running_since,omitempty" doc:"One runs."`
	At       *time.Time `json:"at,omitempty" doc:"When the latest run ended; absent when there was none since the service started."`
	By       string     `json:"by,omitempty" doc:"Who has started the latest run."`
	Error    string     `json:"error,omitempty" doc:"Why it could find out nothing."`
	Findings []Finding  `json:"findings"`
}

// doctor runs once at a time, and keeps what it found.
type doctor struct {
	wanted chan struct{}
	mu     sync.Mutex
	latest Examination
}

// StartDoctor starts a run of the doctor, whose findings Doctor returns once it has ended.
func (in *Inspector) StartDoctor(_ context.Context, by auth.Caller) error {
	if err := by.MaySee(auth.Operator); err != nil {
		return err
	}
	if by.Queues != nil {
		return fmt.Errorf("%w: the doctor looks at all queues, and %s may see only some", auth.ErrForbidden, by.Name)
	}
	if in.Examine == nil {
		return fmt.Errorf("%w: this service has no doctor", ErrPrecondition)
	}
	d := &in.doctor
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.latest.Running != nil {
		return hint.Errorf("wait for its findings: it takes some 20 s", "%w: the doctor runs already, since %s", ErrPrecondition, d.latest.Running.UTC().Format(time.TimeOnly+" UTC"))
	}
	now := in.Now()
	d.latest.Running, d.latest.By = &now, by.Name
	d.wanted <- struct{}{} // has room: there is one for each end of a run
	return nil
}

// examineWhenWanted runs the doctor until ctx ends.
func (in *Inspector) examineWhenWanted(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.doctor.wanted:
		}
		limited, cancel := context.WithTimeout(ctx, examineFor)
		found, err := in.Examine(limited)
		cancel()
		now := in.Now()
		in.doctor.mu.Lock()
		in.doctor.latest = Examination{At: &now, By: in.doctor.latest.By, Findings: found}
		if err != nil {
			in.doctor.latest.Error = err.Error()
		}
		in.doctor.mu.Unlock()
	}
}

// Doctor returns what the doctor found last: to those who are limited to queues, of these.
func (in *Inspector) Doctor(_ context.Context, by auth.Caller) (Examination, error) {
	if err := by.MaySee(auth.Operator); err != nil {
		return Examination{}, err
	}
	return in.examined(by), nil
}

func (in *Inspector) examined(by auth.Caller) Examination {
	in.doctor.mu.Lock()
	defer in.doctor.mu.Unlock()
	e := in.doctor.latest
	e.Findings = slices.Clone(e.Findings)
	if by.Queues != nil {
		e.Error = ""
		e.Findings = slices.DeleteFunc(e.Findings, func(f Finding) bool { return f.Queue == "" || !by.Sees(f.Queue) })
	}
	if e.Findings == nil {
		e.Findings = []Finding{}
	}
	return e
}
