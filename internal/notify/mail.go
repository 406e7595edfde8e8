package notify

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net"
	netmail "net/mail"
	"net/smtp"
	"net/url"
	"strconv"
	"strings"
	"time"

	shoutsmtp "github.com/nicholas-fedor/shoutrrr/pkg/services/smtp"
)

// mail sends by SMTP: over TLS where the port is 465 or the URL says so, else with
// STARTTLS. A password goes over TLS only (net/smtp sees to that).
func mail(u *url.URL) (send, error) {
	at := shoutsmtp.Config{Port: 25, UseStartTLS: true, Encryption: shoutsmtp.EncAuto, Auth: shoutsmtp.AuthUnknown, ClientHost: "localhost"}
	if err := at.SetURL(u); err != nil {
		return nil, err
	}
	from, err := netmail.ParseAddress(at.FromAddress)
	if err != nil {
		return nil, err
	}
	from.Name = at.FromName
	var to []string
	for _, a := range at.ToAddresses {
		parsed, err := netmail.ParseAddress(strings.TrimSpace(a))
		if err != nil {
			return nil, err
		}
		to = append(to, parsed.Address)
	}
	if at.Host == "" || len(to) == 0 || at.Auth == shoutsmtp.AuthOAuth2 {
		return nil, errURL
	}
	return func(ctx context.Context, c *client, m *Message) error {
		conn, err := c.dial.DialContext(ctx, "tcp", net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
		if err != nil {
			return err
		}
		defer conn.Close()
		// net/smtp knows no context.
		deadline, _ := ctx.Deadline()
		_ = conn.SetDeadline(deadline)
		defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
		return deliver(conn, &at, from, to, letter(from, to, m))
	}, nil
}

func deliver(conn net.Conn, at *shoutsmtp.Config, from *netmail.Address, to []string, text []byte) error {
	security := &tls.Config{ServerName: at.Host, MinVersion: tls.VersionTLS12}
	if at.Encryption == shoutsmtp.EncImplicitTLS || at.Encryption == shoutsmtp.EncAuto && at.Port == shoutsmtp.ImplicitTLSPort {
		conn = tls.Client(conn, security)
	}
	s, err := smtp.NewClient(conn, at.Host)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Hello(at.ClientHost); err != nil {
		return err
	}
	_, secure := conn.(*tls.Conn)
	if can, _ := s.Extension("STARTTLS"); can && !secure && at.UseStartTLS && at.Encryption != shoutsmtp.EncNone {
		if err := s.StartTLS(security); err != nil {
			return err
		}
	} else if !secure && at.Encryption == shoutsmtp.EncExplicitTLS {
		return errors.New("the mail server has no STARTTLS, which the URL asks for")
	}
	if at.Username != "" && at.Auth != shoutsmtp.AuthNone {
		var auth smtp.Auth = smtp.PlainAuth("", at.Username, at.Password, at.Host)
		if at.Auth == shoutsmtp.AuthCRAMMD5 {
			auth = smtp.CRAMMD5Auth(at.Username, at.Password)
		}
		if err := s.Auth(auth); err != nil {
			return err
		}
	}
	if err := s.Mail(from.Address); err != nil {
		return err
	}
	for _, a := range to {
		if err := s.Rcpt(a); err != nil {
			return err
		}
	}
	w, err := s.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = s.Quit() // it is accepted, whatever the server says to this
	return nil
}

// letter is plain text in base64, so that no line of it can be a header or a command.
func letter(from *netmail.Address, to []string, m *Message) []byte {
	var b strings.Builder
	for _, h := range [][2]string{
		{"From", from.String()}, {"To", strings.Join(to, ", ")}, {"Subject", mime.QEncoding.Encode("utf-8", cut(m.title(plainText), 200))},
		{"Date", m.At.Format(time.RFC1123Z)}, {"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "base64"}, {"Auto-Submitted", "auto-generated"},
	} {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	text := base64.StdEncoding.EncodeToString([]byte(body(m, plainText)))
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	b.WriteString(text + "\r\n")
	return []byte(b.String())
}
