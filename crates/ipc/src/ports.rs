//! The services of the tracing protocol and the names of their methods.
//!
//! Called by hosts, which list the names when a client binds, and by clients, which call by name. A method's
//! number is local to one host and learned when binding, never assumed; the order here is that of upstream's
//! `producer_port.proto`, `consumer_port.proto` and `relay_port.proto`, so that ours come out the same.

/// A service: its name and the methods that it lists.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    /// The name that clients bind to.
    pub name: &'static str,
    /// The methods, numbered from 1 in this order.
    pub methods: &'static [&'static str],
}

macro_rules! port {
    ($(#[$doc:meta])* $descriptor:ident = $name:literal,
     $(#[$method_doc:meta])* $method:ident { $($variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        pub static $descriptor: ServiceDescriptor =
            ServiceDescriptor { name: $name, methods: &[$(stringify!($variant)),+] };

        $(#[$method_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum $method { $($variant),+ }

        impl $method {
            const ALL: &'static [$method] = &[$($method::$variant),+];

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                $descriptor.methods[self as usize]
            }

            /// The method of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|method| method.name() == name)
            }
        }
    };
}

port! {
    /// The service for producers.
    PRODUCER_PORT = "ProducerPort",
    /// A method of [`PRODUCER_PORT`].
    ProducerMethod {
        InitializeConnection,
        RegisterDataSource,
        UnregisterDataSource,
        CommitData,
        GetAsyncCommand,
        RegisterTraceWriter,
        UnregisterTraceWriter,
        NotifyDataSourceStarted,
        NotifyDataSourceStopped,
        ActivateTriggers,
        Sync,
        UpdateDataSource,
    }
}

port! {
    /// The service for consumers.
    CONSUMER_PORT = "ConsumerPort",
    /// A method of [`CONSUMER_PORT`].
    ConsumerMethod {
        EnableTracing,
        DisableTracing,
        ReadBuffers,
        FreeBuffers,
        Flush,
        StartTracing,
        ChangeTraceConfig,
        Detach,
        Attach,
        GetTraceStats,
        ObserveEvents,
        QueryServiceState,
        QueryCapabilities,
        SaveTraceForBugreport,
        CloneSession,
    }
}

port! {
    /// The service for the relay services of other machines.
    RELAY_PORT = "RelayPort",
    /// A method of [`RELAY_PORT`].
    RelayMethod {
        InitRelay,
        SyncClock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_found_by_its_own_name_only() {
        for name in PRODUCER_PORT.methods {
            assert_eq!(ProducerMethod::from_name(name).unwrap().name(), *name);
        }
        for name in CONSUMER_PORT.methods {
            assert_eq!(ConsumerMethod::from_name(name).unwrap().name(), *name);
        }
        assert_eq!(ConsumerMethod::from_name("CommitData"), None);
        assert_eq!(RelayMethod::from_name("SyncClock"), Some(RelayMethod::SyncClock));
    }
}
