//! The functions of libibverbs, looked up when the driver is made.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use ibverbs_sys::{
    _compat_ibv_port_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use libloading::os::unix;

use super::super::error::VerbsError;

macro_rules! functions {
    ($($(#[$meta:meta])* $field:ident: $symbol:literal fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// One function pointer per verb; named without the `ibv_` prefix.
        pub(super) struct Library {
            $($(#[$meta])* pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// `_ibv_query_gid_table`, which older libraries lack.
            pub(super) query_gid_table: Option<QueryGidTable>,
            /// Keeps the function pointers valid; never unloaded, since providers that it loaded
            /// have threads and exit handlers of their own.
            _object: ManuallyDrop<unix::Library>,
        }

        impl Library {
            fn look_up(object: unix::Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the symbol is looked up with its type in <infiniband/verbs.h>, as
                    // `ibverbs-sys` translated it; the default version is the newest one.
                    let $field = unsafe {
                        object.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol)
                    }?;
                )*
                let query_gid_table = look_up_query_gid_table(&object);
                Ok(Self {
                    $($field: *$field,)*
                    query_gid_table,
                    _object: ManuallyDrop::new(object),
                })
            }
        }
    };
}

pub(super) type QueryGidTable =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;

fn look_up_query_gid_table(object: &unix::Library) -> Option<QueryGidTable> {
    // SAFETY: the symbol is looked up with its type in <infiniband/verbs.h>.
    let symbol = unsafe { object.get::<QueryGidTable>(b"_ibv_query_gid_table\0") };
    symbol.ok().map(|symbol| *symbol)
}

functions! {
    get_device_list: b"ibv_get_device_list\0" fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list: b"ibv_free_device_list\0" fn(*mut *mut ibv_device);
    get_device_name: b"ibv_get_device_name\0" fn(*mut ibv_device) -> *const c_char;
    open_device: b"ibv_open_device\0" fn(*mut ibv_device) -> *mut ibv_context;
    close_device: b"ibv_close_device\0" fn(*mut ibv_context) -> c_int;
    query_device: b"ibv_query_device\0" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port: b"ibv_query_port\0" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    get_async_event: b"ibv_get_async_event\0" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event: b"ibv_ack_async_event\0" fn(*mut ibv_async_event);
    alloc_pd: b"ibv_alloc_pd\0" fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd: b"ibv_dealloc_pd\0" fn(*mut ibv_pd) -> c_int;
    reg_mr: b"ibv_reg_mr\0" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr: b"ibv_dereg_mr\0" fn(*mut ibv_mr) -> c_int;
    create_comp_channel: b"ibv_create_comp_channel\0" fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel: b"ibv_destroy_comp_channel\0" fn(*mut ibv_comp_channel) -> c_int;
    create_cq: b"ibv_create_cq\0"
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq: b"ibv_destroy_cq\0" fn(*mut ibv_cq) -> c_int;
    get_cq_event: b"ibv_get_cq_event\0"
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events: b"ibv_ack_cq_events\0" fn(*mut ibv_cq, c_uint);
    create_qp: b"ibv_create_qp\0" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp: b"ibv_modify_qp\0" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp: b"ibv_destroy_qp\0" fn(*mut ibv_qp) -> c_int;
}

impl Library {
    /// Loads the shared object of this name, and every symbol of it that is needed.
    pub(super) fn load(name: &str) -> Result<Self, VerbsError> {
        // What the dynamic linker said is the error's source.
        let unavailable = |error: libloading::Error| VerbsError::Unavailable {
            reason: error.source().map_or_else(|| error.to_string(), ToString::to_string),
        };
        // SAFETY: libibverbs' initialisers only read the environment and its configuration; they
        // have no requirements on the thread that loads it.
        let object = unsafe { unix::Library::open(Some(name), unix::RTLD_NOW) };
        Self::look_up(object.map_err(unavailable)?).map_err(unavailable)
    }

    /// The kernel's name of a device of the list.
    pub(super) fn device_name(&self, device: *mut ibv_device) -> String {
        // SAFETY: `device` is from a device list that is not freed yet (`DeviceList::devices`).
        let name = unsafe { (self.get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the name is a string inside the device (ibv_get_device_name(3)), which lives as
        // long as the list.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}
