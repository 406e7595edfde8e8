package brokertest

import (
	"context"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/policy"
)

// ServicePassword is that of the user of ServiceURL.
const ServicePassword = "s3cret"

// ServiceURL is the broker's for a service with these policies: as a user who has
// exactly the rights that `redrive permissions` prints for them, and no tag.
// Another call changes its rights.
func (v *VHost) ServiceURL(policies policy.Set) string {
	v.t.Helper()
	if v.service == "" {
		v.service = "service-" + uuid.NewString()
		v.Must(http.MethodPut, "users/"+v.service, map[string]any{"password": ServicePassword, "tags": ""})
		// On a node of the test's own, which may be gone, the user goes with it.
		v.t.Cleanup(func() { _ = v.API().Call(context.Background(), http.MethodDelete, "users/"+v.service, nil, nil) })
	}
	v.Give(v.service, permissions.Service(policies))
	return v.URLAs(v.service, ServicePassword)
}

// ServiceUser is the user of ServiceURL.
func (v *VHost) ServiceUser() string { return v.service }

// Give grants a user the rights of a role.
func (v *VHost) Give(user string, r permissions.Rights) {
	v.t.Helper()
	v.Grant(user, r.Configure, r.Write, r.Read)
	for _, topic := range r.Topics {
		v.Must(http.MethodPut, "topic-permissions/"+url.PathEscape(v.Name)+"/"+user, map[string]any{"exchange": topic.Exchange, "write": topic.Write, "read": topic.Read})
	}
}

// Works are policies for queues of these names.
func Works(queues ...string) policy.Set {
	p := policy.Default()
	p.Queues = queues
	return policy.Set{p}
}
