package model

import "fmt"

// method is the number of a class and of a method in it.
type method uint32

func (m method) String() string { return fmt.Sprintf("%d.%d", m>>16, m&0xffff) }

const (
	basicClass = 60

	connectionStart   method = 10<<16 | 10
	connectionStartOk method = 10<<16 | 11
	connectionTune    method = 10<<16 | 30
	connectionTuneOk  method = 10<<16 | 31
	connectionOpen    method = 10<<16 | 40
	connectionOpenOk  method = 10<<16 | 41
	connectionClose   method = 10<<16 | 50
	connectionCloseOk method = 10<<16 | 51
	connectionBlocked method = 10<<16 | 60
	connectionUnblock method = 10<<16 | 61

	channelOpen    method = 20<<16 | 10
	channelOpenOk  method = 20<<16 | 11
	channelFlow    method = 20<<16 | 20
	channelFlowOk  method = 20<<16 | 21
	channelClose   method = 20<<16 | 40
	channelCloseOk method = 20<<16 | 41

	exchangeDeclare   method = 40<<16 | 10
	exchangeDeclareOk method = 40<<16 | 11
	exchangeDelete    method = 40<<16 | 20
	exchangeDeleteOk  method = 40<<16 | 21
	exchangeBind      method = 40<<16 | 30
	exchangeBindOk    method = 40<<16 | 31
	exchangeUnbind    method = 40<<16 | 40
	exchangeUnbindOk  method = 40<<16 | 51

	queueDeclare   method = 50<<16 | 10
	queueDeclareOk method = 50<<16 | 11
	queueBind      method = 50<<16 | 20
	queueBindOk    method = 50<<16 | 21
	queuePurge     method = 50<<16 | 30
	queuePurgeOk   method = 50<<16 | 31
	queueDelete    method = 50<<16 | 40
	queueDeleteOk  method = 50<<16 | 41
	queueUnbind    method = 50<<16 | 50
	queueUnbindOk  method = 50<<16 | 51

	basicQos       method = basicClass<<16 | 10
	basicQosOk     method = basicClass<<16 | 11
	basicConsume   method = basicClass<<16 | 20
	basicConsumeOk method = basicClass<<16 | 21
	basicCancel    method = basicClass<<16 | 30
	basicCancelOk  method = basicClass<<16 | 31
	basicPublish   method = basicClass<<16 | 40
	basicReturn    method = basicClass<<16 | 50
	basicDeliver   method = basicClass<<16 | 60
	basicGet       method = basicClass<<16 | 70
	basicGetOk     method = basicClass<<16 | 71
	basicGetEmpty  method = basicClass<<16 | 72
	basicAck       method = basicClass<<16 | 80
	basicReject    method = basicClass<<16 | 90
	basicNack      method = basicClass<<16 | 120

	confirmSelect   method = 85<<16 | 10
	confirmSelectOk method = 85<<16 | 11
)
